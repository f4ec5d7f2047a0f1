"""Pictures of graphs."""

from .options import PictureOptions as PictureOptions
from .options import picture_options as picture_options
from .picture import Picture as Picture
from .picture import make_picture as make_picture
from .showing import present as present
from .showing import show as show
