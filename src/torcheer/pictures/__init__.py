"""Pictures of graphs: drawn to files of several formats, or laid out for another library to draw."""

from .._text import human_size as human_size
from .._text import plural as plural
from .geometry import Rect as Rect
from .layout import Companions as Companions
from .layout import LaidOutBox as LaidOutBox
from .layout import LaidOutEdge as LaidOutEdge
from .layout import LaidOutNode as LaidOutNode
from .layout import Layout as Layout
from .layout import lay_out as lay_out
from .options import DrawOptions as DrawOptions
from .options import PictureOptions as PictureOptions
from .options import picture_options as picture_options
from .picture import FORMATS as FORMATS
from .picture import Picture as Picture
from .picture import Target as Target
from .picture import check_format as check_format
from .picture import draw as draw
from .picture import form_for as form_for
from .picture import make_picture as make_picture
from .picture import present as present
from .wording import clean as clean
from .wording import dimensions as dimensions
from .wording import human_count as human_count
