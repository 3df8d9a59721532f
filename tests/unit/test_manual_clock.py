from psched.testing import ManualClock


def test_time_passes_on_all_clocks_but_a_suspended_machine_has_no_running_time():
    clock = ManualClock(monotonic=10, boottime=20, wall=30)

    clock.advance(1)
    clock.suspend(5)
    clock.step(-100)

    assert (clock.monotonic(), clock.boottime(), clock.wall()) == (11, 26, -64)


def test_to_sleep_is_to_let_time_pass():
    clock = ManualClock(monotonic=10)

    clock.sleep(2.5)

    assert clock.monotonic() == 12.5
    assert clock.slept == [2.5]
