"""The curve on disk: cut back to a checkpoint, whatever the last line looks like."""

from foreword_train.log import Log, Row


def filled(path, steps: int) -> Log:
    log = Log(path)
    log.begin(-1)
    for step in range(steps):
        log.add(Row(step=step, loss=1 / (step + 3), held_out={"loss": 0.1}))
    return log


def test_rows_come_back_as_they_were(tmp_path):
    rows = filled(tmp_path / "log.jsonl", 5).rows
    log = Log(tmp_path / "log.jsonl")
    log.begin(3)
    assert log.rows == rows[:4]
    log.add(rows[4])
    assert (tmp_path / "log.jsonl").read_text().count("\n") == 5


def test_incomplete_line_is_dropped(tmp_path):
    rows = filled(tmp_path / "log.jsonl", 3).rows
    with (tmp_path / "log.jsonl").open("a") as file:
        file.write('{"step": 3, "lo')
    log = Log(tmp_path / "log.jsonl")
    log.begin(9)
    assert log.rows == rows


def test_only_the_writing_process_changes_the_file(tmp_path):
    filled(tmp_path / "log.jsonl", 3)
    before = (tmp_path / "log.jsonl").read_bytes()
    other = Log(tmp_path / "log.jsonl", writes=False)
    other.begin(1)
    other.add(Row(step=2))
    assert [row.step for row in other.rows] == [0, 1, 2]
    assert (tmp_path / "log.jsonl").read_bytes() == before
