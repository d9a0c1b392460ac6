"""From headers of files and the state of the destination to a plan: matching variables and rows, and the layout."""
