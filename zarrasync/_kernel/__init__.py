"""The compiled kernel: plain C without Python's headers, called through ctypes. All that it does has a fallback in Python."""
