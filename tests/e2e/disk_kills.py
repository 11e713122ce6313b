"""Servers with a cache on disk that are killed at random moments, while prefixes and states are
evicted, written and read: few fit the memory.  The model is so small that answers take little time,
and files are written all the while."""
import concurrent.futures
import http.client
import random
import signal
import time

from composition import prompt_of
from server import DEVICE, INVARIANT, Server
from tiny_model import write_tiny_model

FEW = ("--kv-cache-memory", "1M", "--max-model-len", 640, "--kv-disk-size", "16M",
       *INVARIANT)
HEAVY = {"type": "heavy_hitter", "sink": 4, "recent": 40, "heavy": 60, "chunk": 96}
PROMPTS = [prompt_of(300 + 40 * seed, seed=seed) for seed in range(8)]
ASKED = [(prompt, {"max_tokens": 3, **({"kv_policy": HEAVY} if i % 3 == 0 else {})})
         for i, prompt in enumerate(PROMPTS)]
LONGEST_S = 2  # from a start to its kill
N_CLIENTS = 4


class Kills:
    """Every server uses the same folder.  A third of its requests have a new salt, so that there is
    always something to write; the others find what servers before have written.  An answer that is
    whole must be that of a server that was never killed."""

    def __init__(self, directory, seed=7):
        self.directory, self.folder = directory, directory / "cache"
        self.model = directory / "model"
        self.model.mkdir()
        write_tiny_model(self.model)
        self.rng = random.Random(seed)
        self.n_clients = 0
        server = self.start()
        self.right = [self.ask(server, i, cache_salt="same")[0] for i in range(len(ASKED))]
        assert server.stop() == 0

    def start(self):
        return Server(self.directory, *FEW, "--kv-disk-path", self.folder, model=self.model)

    @staticmethod
    def ask(server, i, **more):
        """What an answer says, and how many tokens it found."""
        prompt, parameters = ASKED[i]
        answer = server.complete(prompt, **parameters, **more, ignore_eos=True, logprobs=0,
                                 return_token_ids=True)
        choice = answer["choices"][0]
        return ((choice["token_ids"], choice["logprobs"] if DEVICE == "cpu" else None),
                answer["usage"]["prompt_tokens_details"]["cached_tokens"])

    def ask_until_killed(self, server, seed):
        """The answers of one client: which prompt, what was said, how many tokens were found."""
        rng, answers = random.Random(seed), []
        while True:
            i, salt = rng.randrange(len(ASKED)), rng.choice(("same", seed, seed - N_CLIENTS))
            try:
                answers.append((i, *self.ask(server, i, cache_salt=str(salt))))
            except (OSError, ValueError, http.client.HTTPException):
                return answers  # cut off

    def kill_once(self):
        """Returns how many answers were whole, how many tokens they found, and how many files were
        cut short."""
        server = self.start()
        moment = time.monotonic() + self.rng.uniform(0, LONGEST_S)
        with concurrent.futures.ThreadPoolExecutor(N_CLIENTS) as threads:
            clients = []
            for _ in range(N_CLIENTS):
                self.n_clients += 1
                clients.append(threads.submit(self.ask_until_killed, server, self.n_clients))
            time.sleep(max(0, moment - time.monotonic()))
            server.terminate(signal.SIGKILL)
            server.process.wait()
        answers = [answer for client in clients for answer in client.result()]
        assert all(said == self.right[i] for i, said, _ in answers), answers
        server.log_path.unlink()
        return len(answers), sum(n for _, _, n in answers), len(self.unfinished())

    def unfinished(self):
        return list(self.folder.glob("*/*.tmp"))

    def finish(self):
        """A last server finds only sound files, and answers rightly by some of them.  Returns how
        many tokens it found."""
        server = self.start()
        assert not self.unfinished()
        answers = [self.ask(server, i, cache_salt="same") for i in range(len(ASKED))]
        assert [said for said, _ in answers] == self.right
        assert server.metrics()["quire_kv_disk_refused_total"] == 0
        assert server.stop() == 0
        return sum(n for _, n in answers)
