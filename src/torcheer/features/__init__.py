"""Extracts activations over whole datasets: written in blocks while the model runs, and read like arrays."""

from .extract import extract as extract
from .extractor import Extractor as Extractor
from .features import Features as Features
from .features import open_features as open_features
