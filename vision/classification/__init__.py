"""Classification of CT volumes and of images, and where a network looked."""
