"""Items of tasks as token ids, fitted to a wanted length."""
