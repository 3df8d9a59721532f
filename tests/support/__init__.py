"""What tests share: waiting with a deadline, and private servers."""
