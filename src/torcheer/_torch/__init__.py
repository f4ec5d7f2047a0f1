"""Knowledge of torch itself. No file of this folder imports the log or another folder that knows it."""
