"""Every number of the product: its default, its unit, its reason.

The string under each number starts with its unit; a test reads this file and fails on a number without one. The
numbers live in a class so that `--limit NAME=VALUE` can override any of them for one server without a global changing
under anybody: whoever needs a number is handed a `Limits`.

No `dataclasses` here: the opening exchange reads these before anything heavy may be imported.
"""

from __future__ import annotations


class Limits:
    """The numbers in force. Immutable; `Limits.overridden` makes another set."""

    # -- client wire -------------------------------------------------------------------------------------------
    request_bytes: int = 1_048_576
    """bytes. One request line; a longer one is skipped without being held. Room for `code_bytes` and its escapes."""
    code_bytes: int = 262_144
    """bytes of UTF-8. One cell; agents send whole modules, nobody types more."""
    result_bytes: int = 40_000
    """bytes of JSON. Text and structuredContent of one result together; clients cap near 25k tokens."""
    detail_bytes: int = 12_000
    """bytes of JSON. What `detail` adds to the text and structuredContent of one `python_health`, sessions aside."""
    progress_interval: float = 1.0
    """seconds. Between two progress notifications of one call: a person sees movement, the wire stays quiet."""
    progress_line: int = 160
    """characters. The last output line inside a progress message."""
    opening_pause: float = 0.05
    """seconds. Quiet after an answer before the runtime is imported ahead of need."""
    eof_drain: float = 0.5
    """seconds. In-flight requests after EOF on stdin: `cat requests | repl-trio` must still be answered."""
    shutdown_bound: float = 3.0
    """seconds. From the first signal or EOF to exit, whatever workers and the client's pipe do."""
    requests: int = 256
    """requests in flight. More are refused: one client cannot fill the memory with waiting calls."""
    unread_bytes: int = 8_388_608
    """bytes. Answers waiting for a client that does not read; beyond it the connection counts as broken."""
    answers_ahead: int = 1_048_576
    """bytes. Answers waiting for the client before its next request waits for them, for `eof_drain` at most."""

    client_requests: int = 16
    """requests of peers at the client at once. More are refused: a person answers one at a time."""
    client_request_bytes: int = 262_144
    """bytes of JSON. The params of one request to the client; all of these fit into `unread_bytes` at once."""
    client_answer: float = 600.0
    """seconds. For the client's answer; a person may think, and the time limit of the call ends most of it earlier."""

    # -- runs --------------------------------------------------------------------------------------------------
    timeout_default: float = 120.0
    """seconds. A cell without a `timeout` of its own."""
    timeout_min: float = 0.01
    """seconds. Smallest `timeout`: below it nothing can run."""
    timeout_max: float = 3600.0
    """seconds. Largest `timeout`: longer work belongs in a process of its own."""
    wait_max: float = 60.0
    """seconds. Longest `wait` of one `python_run` call: under the limits of common clients."""
    busy_wait: float = 5.0
    """seconds. A new run waits this long for the clean-up of a run that is being cancelled."""
    runs_retained: int = 64
    """runs per session. Finished results that `python_run` can still read, newest first."""
    sessions: int = 32
    """sessions. Open at the same time, the default one included."""
    session_name_bytes: int = 200
    """bytes of UTF-8. A session's name is a label."""

    # -- output ------------------------------------------------------------------------------------------------
    output_head: int = 40_000
    """bytes. First bytes kept of each stream of a run."""
    output_tail: int = 10_000
    """bytes. Last bytes kept of each stream of a run, beyond the head."""
    error_bytes: int = 10_000
    """bytes of UTF-8. Type, message and traceback of one error."""
    preview_bytes: int = 20_000
    """bytes of UTF-8. Preview of the trailing value."""

    # -- artifacts and images ----------------------------------------------------------------------------------
    artifact_bytes: int = 16_777_216
    """bytes. One artifact; the rest of a longer stream or value is dropped, and said to be."""
    artifacts_bytes: int = 67_108_864
    """bytes. All artifacts of one session together; the oldest go first."""
    artifacts: int = 64
    """artifacts of one session. The oldest go first."""
    artifact_read: int = 16_384
    """bytes. What one `artifact_read` returns at most: it must fit into a result twice."""
    value_text_bytes: int = 4_194_304
    """bytes of UTF-8. Text of a container whose preview is shortened: walking one costs time, unlike a string."""
    image_bytes: int = 524_288
    """bytes. An image that goes into a result; a larger one is an artifact alone. Clients cap near 1 MiB of base64."""
    image_side: int = 8_000
    """pixels. Width and height of an image in a result; models refuse larger ones, and the conversation with them."""
    images_bytes: int = 1_048_576
    """bytes. All images of one result together."""
    images: int = 8
    """images in one result. More are artifacts alone: a client shows a handful."""
    displays: int = 32
    """things that one run may show with `display` beyond text. A loop that shows thousands is a mistake."""

    # -- worker ------------------------------------------------------------------------------------------------
    frame_bytes: int = 1_048_576
    """bytes. One frame between server and worker, counted before parsing."""
    frames_queued: int = 4
    """frames. Waiting in one link writer; more make the sender wait."""
    worker_start: float = 30.0
    """seconds. From the launch of a guardian to the worker's `ready`: a cold disk, a network home directory."""
    probe_bound: float = 10.0
    """seconds. A probed interpreter that says nothing for this long is broken."""
    write_stall: float = 5.0
    """seconds. An `execute` or `shutdown` frame that the worker does not take for this long ends the worker."""
    rpc_pending: int = 64
    """requests of one run to the peers that wait for answers. The worker keeps more back, for a gather of hundreds."""
    rpc_settle: float = 0.1
    """seconds. A run that is stopped waits this long for its requests to take their leave before its first SIGINT."""
    rpc_end: float = 1.0
    """seconds. The answer of a run waits this long for them: nothing of it shall write afterwards."""
    history_runs: int = 64
    """runs. What `repl_history` and `repl_source` remember."""
    history_bytes: int = 1_048_576
    """bytes of UTF-8. Source kept for `repl_history` and `repl_source`."""
    thread_grace: float = 0.5
    """seconds. User threads and executor work may end by themselves this long after their cell."""
    task_grace: float = 0.15
    """seconds. One round of waiting for cancelled asyncio tasks of a cell; three rounds."""
    sh_timeout: float = 120.0
    """seconds. `sh` and `ash` without a `timeout` of their own."""
    sh_bytes: int = 1_048_576
    """bytes. What `sh` and `ash` keep of each stream of their command."""
    checkpoint_bytes: int = 16_777_216
    """bytes. One file of `checkpoint` and `restore`: it is parsed in one step that no interrupt can end."""

    memory_mib: int = 2_048
    """mebibytes. Resident memory of a worker (`--max-memory-mib`, a session's own): more, and the machine suffers."""
    memory_interval: float = 0.25
    """seconds. Between two looks at a busy worker's memory."""

    # -- peers -------------------------------------------------------------------------------------------------
    peer_connect: float = 30.0
    """seconds. From the start of a peer to the end of its handshake: `npx` and `uvx` may download first."""
    peer_probe: float = 3.0
    """seconds. A peer that leaves `server/discover` unanswered for this long is taken for one of the handshake era."""
    peer_list: float = 30.0
    """seconds. One whole listing of a peer, all pages together."""
    peer_call: float = 120.0
    """seconds. One call without a timeout of its own, connecting included."""
    peer_retry: float = 30.0
    """seconds. A failed connect is remembered for this long: a loop of calls must not start a broken peer each time."""
    peer_calls: int = 32
    """requests to one peer at once. More wait for their turn."""
    peer_message_bytes: int = 8_388_608
    """bytes. One message of a peer, counted before parsing: parsing takes 0.1 s then, in which nothing else runs."""
    peer_junk_bytes: int = 1_048_576
    """bytes. What a peer may print between two messages that is no message; beyond it is no MCP server."""
    peer_unread_bytes: int = 4_194_304
    """bytes. What waits for a peer that does not read; beyond it the connection counts as broken."""
    peer_stderr_bytes: int = 16_384
    """bytes. The end of a peer's stderr that is kept."""
    peer_words: int = 2_000
    """characters. How much of a peer's stderr or stray output an error quotes."""
    peer_rounds: int = 10
    """requests. How often one call may be sent on when its peer answers it with questions of its own."""
    peer_grace: float = 2.0
    """seconds. Between the end of a peer's stdin and SIGTERM to all of it."""
    peer_kill: float = 2.0
    """seconds. Between SIGTERM and SIGKILL when a peer does not end."""

    # -- the interruption ladder (contract 4.1) ----------------------------------------------------------------
    ladder_settle: float = 0.05
    """seconds after a cell was sent. No SIGINT before: the worker drops one that finds no run begun."""
    ladder_children: float = 0.3
    """seconds after each SIGINT. SIGURG to the worker, SIGINT to the run's processes: frees `os.system` and shells."""
    ladder_again: float = 1.0
    """seconds. SIGINT to the worker again: thread pools and cells that swallowed the first one."""
    ladder_dump: float = 1.9
    """seconds. faulthandler dump, so that the error names the stuck line."""
    ladder_term: float = 2.0
    """seconds. SIGTERM and SIGCONT to everything the worker started."""
    ladder_kill: float = 2.25
    """seconds. SIGKILL; the namespace is gone."""

    # -- catalogues, validation and the journal of calls -------------------------------------------------------
    catalogue_pages: int = 128
    """pages. Of one listing of a peer; a peer that never ends its listing must not be read for ever."""
    catalogue_tools: int = 10_000
    """entries. Of one listing of a peer."""
    catalogue_bytes: int = 1_048_576
    """bytes of JSON. One whole listing of a peer."""
    catalogue_ttl: float = 15.0
    """seconds. How long a listing is believed whose peer does not say so itself (`ttlMs`)."""
    search_matches: int = 50
    """tools. What one search over the catalogues returns, best first: more is no answer."""
    schema_bytes: int = 262_144
    """bytes of JSON. The schema of one tool; the largest seen in the wild is a tenth of it."""
    schema_depth: int = 64
    """levels. Nesting of a tool's schema, and of the arguments of a call."""
    schema_nodes: int = 20_000
    """values. Objects, arrays and scalars in a tool's schema."""
    argument_nodes: int = 100_000
    """values. Objects, arrays and scalars in the arguments of one call."""
    check_steps: int = 2_000
    """steps. One validation in the server itself, a few milliseconds; what takes more goes to the judge."""
    judge_start: float = 10.0
    """seconds. From the judge's start to its first word: it imports a validator, on a cold disk perhaps."""
    judge_bound: float = 2.0
    """seconds. One verdict; a judge that takes longer is in a pattern without end, and is killed."""
    journal_records: int = 256
    """records. What the journal remembers; the oldest finished one goes first."""
    journal_wait: float = 5.0
    """seconds. A record that is not on disk by then is refused, and its call with it."""
    journal_close: float = 1.0
    """seconds. For the last outcomes to reach the disk; without them the next start calls those calls unknown."""

    # -- stop and shutdown -------------------------------------------------------------------------------------
    stop_grace: float = 1.0
    """seconds. After a `shutdown` frame, for atexit handlers and `finally`."""
    stop_kill: float = 0.25
    """seconds. Between SIGTERM and SIGKILL when a worker did not stop by itself."""
    close_bound: float = 15.0
    """seconds. Closing one session: its run's ladder, its worker's stop, its guardian's clean-up."""
    shutdown_term: float = 0.8
    """seconds after the start of a shutdown. SIGTERM to what still lives."""
    shutdown_kill: float = 1.2
    """seconds after the start of a shutdown. SIGKILL to what still lives."""
    guardian_ack: float = 2.0
    """seconds. The longest the server waits for one answer of a guardian."""
    guardian_clean: float = 10.0
    """seconds. A guardian's whole clean-up, new forks between its rounds included."""
    orphan_grace_ms: int = 250
    """milliseconds. Between SIGTERM and SIGKILL when the lifeline closed."""
    sweep_delay: float = 1.0
    """seconds. From the runtime's start to the search for what killed servers left behind: first cells go first."""
    oom_score_adj: int = 500
    """points. Added to a worker's oom_score_adj: the kernel should take a worker before the server."""

    # -- registry ----------------------------------------------------------------------------------------------
    peers: int = 32
    """peers. Connected at the same time; each is a process or a connection of its own."""
    config_bytes: int = 1_048_576
    """bytes. One file with peers or client settings; it is parsed in one step that nothing can end."""
    client_state_bytes: int = 8_388_608
    """bytes. The client's own state file, which keeps much else; parsing this much takes about a tenth of a second."""
    config_entries: int = 256
    """entries in one file. Nobody configures more by hand."""
    config_values: int = 5_000
    """values, and lines of values, in the entries of one file. Each may be a secret, which has twenty forms."""
    config_value_bytes: int = 65_536
    """bytes of UTF-8. One expanded value: the kernel takes 128 KiB for one argument, and variables may repeat."""
    server_name_bytes: int = 200
    """bytes of UTF-8. The name of a configured peer is a label."""

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"limits do not change: {name}")

    @classmethod
    def names(cls) -> list[str]:
        """The names of all limits, in the order of this file."""
        return [name for name in cls.__annotations__ if not name.startswith("_")]

    def overrides(self) -> list[str]:
        """What differs from the defaults, as NAME=VALUE: how a worker is told."""
        return [f"{name}={value}" for name, value in vars(self).items()]

    @classmethod
    def overridden(cls, pairs: dict[str, str]) -> Limits:
        """Limits with some numbers replaced, given as text (`--limit NAME=VALUE`).

        Raises `ValueError`, with a sentence for the user, on an unknown name, a value that is no number of the limit's
        kind, or a value that is not positive.
        """
        made = cls()
        for name, text in pairs.items():
            if name not in cls.names():
                raise ValueError(f"unknown limit {name!r}; known: {', '.join(cls.names())}")
            kind = type(getattr(cls, name))
            try:
                value = kind(text)
            except ValueError:
                raise ValueError(f"limit {name} takes {'a whole number' if kind is int else 'a number'}") from None
            # `not >` instead of `<=`: a NaN compares false with everything and must not pass.
            if not 0 < value < float("inf"):
                raise ValueError(f"limit {name} must be positive and finite")
            object.__setattr__(made, name, value)
        if not made.timeout_min <= made.timeout_default <= made.timeout_max:
            raise ValueError("timeout_min <= timeout_default <= timeout_max must hold")
        return made


DEFAULT = Limits()
