"""Many files into one dataset: headers of the files, a plan as plain data, its tasks, and publishing the result.

1. ``identify`` expands patterns and records the size and time of each file. ``readers`` opens files and reads their
   ``headers``, with ``digests`` of large variables. ``copies`` keeps remote files, and ``hdf5_chunks`` reads chunks itself.
2. ``target`` reads the state of the destination. ``known`` leaves out the files that it contains.
3. ``variables``, ``compare``, ``fitting``, ``times``, ``axis``, ``matching``, ``layout`` and ``planning`` derive a ``JobPlan`` from the
   headers and the destination. They do no IO.
4. ``tasks`` writes the rows of one task. Tasks are independent, so threads, processes or machines can share them: ``pool``.
5. ``publish`` stores the documents that make the new rows visible, the group's last. ``republish`` completes that after a
   kill, if ``samples`` of the rows are still stored. ``statistics`` compares the stored values with the files, of earlier jobs those that ``stored_rows`` finds.
6. ``claim`` and ``runs`` keep two jobs apart and remember finished tasks. ``journal``, ``older_files`` and ``file_rows``
   record the ingested files in the dataset.

``job`` and ``planned_job`` connect these steps, and ``functions`` makes a job from the arguments of ``ingest``.
"""
