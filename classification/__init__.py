"""Classification of CT volumes and of images, and where a network looked."""

#: What every output says.
NOTICE = "Research software, not a medical device: not for diagnosis or treatment."
