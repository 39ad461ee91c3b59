"""A local web server that shows a run live. It reads the run directory and never writes there.

    followed_run  ``FollowedRun``: read the events of a run as they grow
    fragments     the parts of its page, each rendered by itself
    access        who may ask: a token, the Host header, and headers that restrict the page
    server        the server, on ``http.server``

Nothing here imports torch.
"""
