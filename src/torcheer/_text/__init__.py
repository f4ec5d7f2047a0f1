"""Formats results: text that fits a terminal, colours, tables, and cards in a notebook."""

from .amounts import describe_shapes as describe_shapes
from .amounts import human_size as human_size
from .amounts import human_time as human_time
from .amounts import listed as listed
from .amounts import plural as plural
from .card import Fold as Fold
from .card import Shown as Shown
from .card import ShownTable as ShownTable
from .card import image as image
from .card import preformatted as preformatted
from .card import print_shown as print_shown
from .card import sparkline as sparkline
from .progress import BytesProgress as BytesProgress
from .progress import Progress as Progress
from .tables import Column as Column
from .tables import Table as Table
from .tables import aligned as aligned
from .tables import data_frame as data_frame
from .tables import did_you_mean as did_you_mean
from .tables import few as few
from .tables import has_colors as has_colors
from .tables import nearest as nearest
from .tables import paint as paint
from .tables import terminal_width as terminal_width
