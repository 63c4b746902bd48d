"""The role that makes certificates, keeps them fresh and tells the API server whom to trust."""
