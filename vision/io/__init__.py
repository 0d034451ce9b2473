"""Images, disparities, depth maps, cameras and point clouds in files."""
