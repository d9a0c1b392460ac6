"""Many files into one dataset: headers of the files, a plan as plain data, its tasks, and publishing the result.

1. ``identify`` expands patterns and records the size and time of each file. ``scan`` reads the headers.
2. ``axis``, ``times`` and ``planning`` derive a ``JobPlan`` from the headers and the destination. They do no IO.
3. ``tasks`` writes the rows of one task. Tasks are independent, so threads, processes or machines can share them.
4. ``publish`` stores the documents that make the new rows visible, the group's last.
5. ``claim`` keeps two jobs apart and remembers finished tasks. ``journal`` records the ingested files in the dataset.
"""
