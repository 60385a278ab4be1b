"""The connections between the nodes of a job, and findings for nodes that do not connect or are lost."""

import socket
import threading
from typing import Any

import pytest

from ensemble.doctor import network, rendezvous
from ensemble.errors import UserError


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, (0, 1, "")),
        ({"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "a", "MASTER_PORT": "5", "SLURM_PROCID": "0"}, (1, 2, "a")),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "4"}, (0, 1, "")),  # the batch script itself
        ({"SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_NODELIST": "n7"}, (1, 2, "n7")),
    ],
)
def test_the_position_of_a_process(environment: dict[str, str], expected: tuple[int, int, str]) -> None:
    """Under srun, every node would check itself alone; a batch script would wait for nodes that never connect."""
    position = rendezvous.job_position(environment)
    assert (position.rank, position.num_nodes, position.head) == expected


def test_two_job_steps_meet_on_different_ports() -> None:
    """Two jobs on a node would use the same port, or two nodes of a job different ones."""
    slurm = {"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_NODELIST": "n", "SLURM_JOB_ID": "7"}
    each, other = (
        rendezvous.job_position({**slurm, "SLURM_STEP_ID": step, "SLURM_PROCID": rank}) for step, rank in ("00", "01")
    )
    next_step = rendezvous.job_position({**slurm, "SLURM_STEP_ID": "1"})
    assert each.port == other.port != next_step.port
    assert 20000 <= each.port < 30000


@pytest.mark.parametrize(
    ("environment", "sentence"),
    [
        ({"RANK": "one", "WORLD_SIZE": "2"}, "RANK=one is impossible"),
        ({"RANK": "²", "WORLD_SIZE": "2"}, "RANK=² is impossible"),
        ({"RANK": "2", "WORLD_SIZE": "2", "MASTER_ADDR": "a"}, "it must be less than WORLD_SIZE=2"),
        ({"RANK": "0", "WORLD_SIZE": "2"}, "the head node is unknown: export MASTER_ADDR"),
        ({"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "a", "MASTER_PORT": "65536"}, "MASTER_PORT=65536 is impossible"),
        ({"TORCHELASTIC_RUN_ID": "none"}, "without a launcher, and on several nodes by srun"),
    ],
)
def test_invalid_variables_are_user_errors(environment: dict[str, str], sentence: str) -> None:
    """The doctor would end in a traceback, or wait in vain."""
    with pytest.raises(UserError, match=sentence):
        rendezvous.job_position(environment)


@pytest.mark.parametrize(
    ("head", "sentence", "fix"),
    [
        ("192.0.2.1", "the head node, 192.0.2.1 (192.0.2.1), port {port}, does not answer", "check that the head node runs"),
        ("127.0.0.1", "does not answer: Connection refused", "have 127.0.0.1 resolve to the head node"),
        ("nowhere.invalid", "the head node, nowhere.invalid (an unknown name)", "export MASTER_ADDR as its address"),
        ("n1,n2," * 11, "n1,n2, (an unknown name)", "export MASTER_ADDR as its address"),  # a list of nodes
    ],
)
def test_a_head_node_that_does_not_answer_is_named(
    head: str, sentence: str, fix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A name that does not resolve, or resolves to the node itself, would look like a head node that starts late."""
    monkeypatch.setattr(rendezvous, "HANDSHAKE_S", 0.1)
    port = network.free_port()
    position = rendezvous.JobPosition(rank=1, num_nodes=2, name="n1", head=head, port=port)
    (finding,) = rendezvous.meet(position, 0.4).findings
    assert sentence.format(port=port) in finding.value
    assert fix in finding.fix


def test_a_node_that_is_lost_later_is_named() -> None:
    """The head node would wait for it, or report no problem."""
    port = network.free_port()
    positions = [
        rendezvous.JobPosition(
            rank=rank, num_nodes=3, name=f"n{rank}", head="127.0.0.1", port=port, names=("n0", "n1", "n2")
        )
        for rank in range(3)
    ]
    meetings: dict[int, rendezvous.Connections] = {}
    guests = [
        threading.Thread(target=lambda position=position: meetings.update({position.rank: rendezvous.meet(position, 30)}))
        for position in positions[1:]
    ]
    for guest in guests:
        guest.start()
    head = rendezvous.meet(positions[0], 30)
    for guest in guests:
        guest.join()
    assert head.findings == []
    every = [head, *meetings.values()]
    meetings[1].streams[0].connection.shutdown(socket.SHUT_RDWR)
    answers: dict[int, Any] = {}
    guest = threading.Thread(target=lambda: answers.update(meetings[2].exchange("from 2", 30)))
    guest.start()
    assert head.exchange("from 0", 30) == {0: "from 0", 2: "from 2"}
    guest.join()
    assert answers == {0: "from 0", 2: "from 2"}
    assert [finding.value for finding in head.findings] == ["n1 was lost during the checks"]
    # When the head node is lost, the others continue without it
    head.streams[2].connection.shutdown(socket.SHUT_RDWR)
    assert meetings[2].exchange("alone", 30) == {2: "alone"}
    assert "the head node, 127.0.0.1, was lost" in meetings[2].findings[0].value
    for each in every:
        each.close()
