"""Many files into one dataset: headers of the files, a plan as plain data, its tasks, and publishing the result.

From the ground up:

1. ``sources``: ``identify`` expands patterns and records the size and time of each file. ``readers`` opens files, with copies of
   remote ones, and returns their ``headers``, with digests of large variables. ``datasets`` reads files with xarray, in the way that
   ``engines`` chooses, and calls a function of the user. ``content``, ``hdf5`` and ``grib_messages`` find what the libraries would
   leave out or take for complete; ``hdf5`` also reads chunks itself. ``name_labels`` finds labels in the names of files.
   ``conversions`` changes values to the units and the data type of the dataset.
2. ``records``: ``journal`` records the ingested files in the dataset. ``plan`` is the plan of a job, and ``target`` the state of the
   destination.
3. ``planning``: ``file_choice`` leaves out the files that the destination contains, and those that do not fit. ``variables``,
   ``comparison``, ``consistency``, ``axis``, ``matching`` and ``make_plan`` derive a ``FilesPlan`` from the headers and the destination.
4. ``running``: ``tasks`` writes the rows of each task. Tasks are independent, so threads, processes or machines can share them.
   ``moved_rows`` makes room for late rows. ``publish`` stores the documents that make the new rows visible, the group's last,
   also after a kill. ``planned_job`` runs and publishes a plan, in one call or as commands of other processes.

``job`` connects these steps, and ``ingestion`` makes a job from the ``parameters`` of users.
"""
