"""Many files into one dataset: headers of the files, a plan as plain data, its tasks, and publishing the result.

From the ground up:

1. ``sources``: ``identify`` expands patterns and records the size and time of each file. ``readers`` opens files and reads
   their ``headers``, with ``digests`` of large variables. ``inherited`` finds coordinates in groups above, and ``name_labels``
   labels in the names of files. ``preprocess`` calls a function of the user. ``copies`` keeps remote files, and
   ``hdf5_chunks`` reads chunks itself. ``times`` and ``conversions`` change values to the units and the data type of the
   dataset.
2. ``records``: ``journal`` and ``file_rows`` record the ingested files in the dataset, and ``source_values`` stores that.
   ``plan`` is the plan of a job, and ``target`` the state of the destination.
3. ``planning``: ``choice`` leaves out the files that the destination contains. ``variables``, ``compare``, ``fitting``,
   ``axis``, ``matching``, ``reserve``, ``layout`` and ``make_plan`` derive a ``FilesPlan`` from the headers and the
   destination. They do no IO.
4. ``running``: ``tasks`` writes the rows of one task. Tasks are independent, so threads, processes or machines can share
   them: ``pool``. ``moved_rows`` makes room for late rows. ``publish`` stores the documents that make the new rows visible,
   the group's last, also after a kill.

``job`` connects these steps, and ``ingestion`` makes a job from the ``parameters`` of users.
"""
