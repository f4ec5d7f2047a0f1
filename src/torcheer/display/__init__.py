"""How results are shown: as text that fits a terminal, in colour where there is one, and as a card in a notebook."""

from .card import Fold as Fold
from .card import Shown as Shown
from .card import ShownTable as ShownTable
from .card import image as image
from .card import preformatted as preformatted
from .card import print_shown as print_shown
from .card import sparkline as sparkline
from .progress import BytesProgress as BytesProgress
from .progress import Progress as Progress
from .table import Column as Column
from .table import Table as Table
from .table import aligned as aligned
from .table import data_frame as data_frame
from .terminal import has_colors as has_colors
from .terminal import paint as paint
from .terminal import terminal_width as terminal_width
from .wording import did_you_mean as did_you_mean
from .wording import few as few
from .wording import nearest as nearest
