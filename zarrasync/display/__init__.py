"""What people see: text, HTML, SVG pictures and progress bars of nodes and selections."""
