"""Text, HTML, pictures and progress bars for people."""
