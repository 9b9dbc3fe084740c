"""What processes learn from their surroundings, and in what they may not differ."""

import unittest

from tracewright_xla.errors import ProcessError
from tracewright_xla.module import collectives
from tracewright_xla.processes import Group, differences, first_host, from_environment


class Surroundings(unittest.TestCase):
    def test_slurm_says_how_many_and_which(self) -> None:
        self.assertEqual(from_environment({"SLURM_NTASKS": "4", "SLURM_PROCID": "3"}), (4, 3))

    def test_kubernetes_says_which(self) -> None:
        self.assertEqual(from_environment({"JOB_COMPLETION_INDEX": "2"}), (None, 2))

    def test_nobody_says_nothing(self) -> None:
        for said in ["", "x", "-1", "²", "9" * 5000]:
            with self.subTest(said=said[:16]):
                self.assertEqual(from_environment({"SLURM_NTASKS": said, "SLURM_PROCID": said}), (None, None))

    def test_the_first_host_of_a_list(self) -> None:
        for nodes, host in [
            ("node001", "node001"),
            ("node001,node002", "node001"),
            ("node[001-004,7],other", "node001"),
            ("n[3,5]", "n3"),
            ("gpu-a-[12-13]", "gpu-a-12"),
        ]:
            self.assertEqual(first_host({"SLURM_STEP_NODELIST": nodes}), host)
        self.assertIsNone(first_host({}))

    def test_numbers_that_make_no_group_are_refused(self) -> None:
        Group(2, "host:1234", 1).check()
        for group in [
            Group(2, "host:1234", 2), Group(0, "host:1234", 0), Group(2, "h:1", -1),
            Group(2, "host", 0), Group(2, "host:0", 0), Group(2, "host:65536", 0), Group(2, f"host:{'9' * 5000}", 0),
        ]:  # fmt: skip
            with self.subTest(group=group), self.assertRaises(ProcessError):
                group.check()


class Agreement(unittest.TestCase):
    def test_equal_facts_agree(self) -> None:
        self.assertEqual(differences([{"jax": "1"}, {"jax": "1"}]), [])

    def test_a_difference_names_process_and_versions(self) -> None:
        said = differences([{"jax": "1", "python": "3"}, {"jax": "1", "python": "3"}, {"jax": "2", "python": "3"}])
        self.assertEqual(
            said, ["process 2 has jax 2, process 0 has 1; expected the same in all processes"]
        )


class Collectives(unittest.TestCase):
    def test_each_is_counted_once_with_its_type(self) -> None:
        text = """
  %a = f32[1,144]{1,0} all-reduce(%x), channel_id=1, to_apply=%add
  ROOT %b = f32[1,144]{1,0} all-reduce(f32[1,144]{1,0} %y), channel_id=2
  %c = (f32[8]{0}, f32[16]{0}) all-gather-start(%z), dimensions={0}
  %d = f32[16]{0} all-gather-done(%c)
  %e = f32[2] add(%all-reduce.1, %q), metadata={op_name="all-reduce"}
"""
        self.assertEqual(
            dict(collectives(text)), {("all-reduce", "f32[1,144]"): 2, ("all-gather", "(f32[8], f32[16])"): 1}
        )


if __name__ == "__main__":
    unittest.main()
