"""What penstock is measured against, each as its own users would have it."""
