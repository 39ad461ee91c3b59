"""The application: from a configuration file to a finished run.

A configuration passes ``config.loading``, ``plugins.loader``, ``resolution``, ``compose`` and ``trainer.loop``, each
once; ``cli.run`` shows the order.

What is here:
    resolution: every name in a configuration becomes a component with validated settings. Imports no torch.
    dispatch: call the hooks of a run: observers, health checks, report sections, ``esper_run``.
    threads: the engine of this process.
    components: build one component and check what it built; hosts named by an import path.
    recipes: choose devices; build what environments have in common, task, data, host, slots and blueprints, and check
        that they fit.
    descriptions: slots and blueprints, described for policies: parameters and operations.
    compose: build also policies and rewards, and the study of a run.
    run: ``run`` and ``resume``, and the run directory.
    endings: the status of a run that an error ends, and where it is recorded and shown.
    lost_seeds: count lost seeds, warn of them, and name blueprints of which none survived.
    checkpoints: when a checkpoint is written, what is in it, and where a run resumes.
    interrupts: SIGINT, SIGTERM and SIGHUP finish the step in progress.
    runtime: threads and memory allocator of the process.

What is not here: the training loop (``trainer``), the files of a run (``runs``), and commands (``cli``).

Begin reading with ``run``.
"""
