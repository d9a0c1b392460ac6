"""Many files into one dataset: headers of the files, a plan as plain data, its tasks, and publishing the result.

From the ground up:

1. ``sources``: ``identify`` expands patterns and records the size and time of each file. ``readers`` opens files and reads
   their ``headers``, with ``digests`` of large variables. ``inherited`` finds coordinates in groups above, and ``name_labels``
   times in the names of files. ``copies`` keeps remote files, and ``hdf5_chunks`` reads chunks
   itself. ``times`` and ``conversions`` change values to the units and the data type of the dataset.
2. ``records``: ``claim``, ``claim_folder`` and ``runs`` keep two jobs apart and remember finished tasks. ``journal``,
   ``older_files`` and ``file_rows`` record the ingested files in the dataset. ``plan`` is the plan of a job, and ``target``
   the state of the destination.
3. ``planning``: ``known`` leaves out the files that the destination contains. ``variables``, ``compare``, ``fitting``, ``axis``,
   ``matching``, ``layout`` and ``make_plan`` derive a ``FilesPlan`` from the headers and the destination. They do no IO.
4. ``running``: ``tasks`` writes the rows of one task. Tasks are independent, so threads, processes or machines can share
   them: ``pool``. ``publish`` stores the documents that make the new rows visible, the group's last. ``republish`` completes
   that after a kill.

``job`` connects these steps, and ``functions`` makes a job from the arguments of ``ingest``.
"""
