"""The clock by which a server's work is measured: the time that passes, or, on a machine that others
use, too, the CPU time of the server's process."""
import os
import time


def seconds(process_id=None):
    """process_id: whose CPU time, in hundredths of a second; None: the time that passes."""
    if not process_id:
        return time.monotonic()
    with open(f"/proc/{process_id}/stat", encoding="utf-8") as file:
        fields = file.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
