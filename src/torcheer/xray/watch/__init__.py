"""What of a training is watched: which layers, what is measured of them, and that watching leaves no trace."""
