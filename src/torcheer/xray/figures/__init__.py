"""Pictures of what was written down: figures, mosaics, animations."""
