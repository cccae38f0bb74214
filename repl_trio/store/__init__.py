"""What is kept: the journal of calls to peers."""
