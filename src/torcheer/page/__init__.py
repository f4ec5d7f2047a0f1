"""The browser viewer: converts a history to a payload of plain values, and to one HTML file that shows it offline."""

from .graph_page import Page as Page
from .graph_page import PageOptions as PageOptions
from .graph_page import make_page as make_page
from .graph_page import read_payload as read_payload
from .graph_page import show as show
from .graph_page import to_html as to_html
from .model_explorer import node_data_of as node_data_of
from .model_explorer import to_model_explorer as to_model_explorer
from .payload import payload_of as payload_of
from .payload import to_json as to_json
from .values import Metrics as Metrics
