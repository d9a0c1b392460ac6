"""Object stores: S3, Google Cloud Storage and Azure, through obstore and presigned URLs."""
