"""A local web server that shows runs live. It reads run directories and never writes there.

    index       ``RunsFolder`` and ``FollowedRun``: read the events of runs as they grow
    access      who may ask: a token, the Host header, and headers that restrict the pages
    connections those that ask for nothing are closed
    fragments   the parts of a page, each rendered by itself
    site        the pages and their event streams (starlette)
    server      start and stop the server (uvicorn)
    beside      the server in a process beside a run, for ``esper run --watch``
    command     ``esper watch --web``

Nothing here imports torch. The extra ``esper-watch[web]`` brings starlette and uvicorn.
"""
