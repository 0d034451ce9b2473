"""Pictures of maps, of point clouds and of comparisons."""
