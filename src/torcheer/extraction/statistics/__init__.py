"""What features tell: statistics, top samples and their pictures, principal components, nearest samples."""

from .feature_statistics import FeatureStatistics as FeatureStatistics
from .feature_statistics import LayerStatistics as LayerStatistics
