"""What Python and the browser programs in web/ share: their data's format, their colours, and the pages that hold them."""
