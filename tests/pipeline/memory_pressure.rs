//! Pressure that the kernel measures: a program in a small control group waits for memory.

use heaptape_tests::cgroup::Cgroup;
use heaptape_tests::daemon::{Daemon, Running};
use heaptape_tests::wait::until;
use heaptape_tests::{is_root, test_env};
use std::path::{Path, PathBuf};

/// A control group of version 2 with `memory.pressure`, which is removed when the value is dropped.
struct Group(PathBuf);

impl Group {
    /// Creates a group. Returns `None`, with a message on standard error, where that is not
    /// possible.
    fn new(root: &Path) -> Option<Group> {
        let group = Group(root.join(format!("heaptape-test-pressure-{}", std::process::id())));
        let is_made = is_root() && std::fs::create_dir(&group.0).is_ok() && group.0.join("memory.pressure").exists();
        if !is_made {
            eprintln!("skipped: no control group of version 2 with memory.pressure can be made in {}", root.display());
        }
        is_made.then_some(group)
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        for _ in 0..100 {
            if std::fs::remove_dir(&self.0).is_ok() || !self.0.exists() {
                break;
            }
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
    }
}

/// The program reads pages of a file that is larger than its group may keep in memory, again and
/// again. That such pages are read a second time counts as waiting for memory.
#[test]
fn flight_is_kept_when_a_program_waits_for_memory() {
    let roots = ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"].map(Path::new);
    let Some(root) = roots.into_iter().find(|root| root.join("cgroup.controllers").exists()) else {
        eprintln!("skipped: there are no control groups of version 2");
        return;
    };
    let Some(group) = Group::new(root) else { return };
    let Some(limited) = Cgroup::limited(40_000_000) else { return };
    // Where version 2 has the memory controller, the group with the limit has the pressure, too.
    let groups = [group.0.join("cgroup.procs"), limited.processes()];
    let folder = test_env::folder();
    let file = folder.path().join("file");
    let daemon =
        Daemon::start(&["--mode", "flight", "--flight-pressure", "2", "--cgroups", root.to_str().expect("a path")]);
    let code = "
import mmap, os, random, sys
# The pages of the file belong to the group that has written them. Each wait for the disk may be long
# where others write, too.
with open(sys.argv[1], 'wb') as file:
    for _ in range(6):
        file.write(bytes(10 << 20))
        file.flush()
        os.fdatasync(file.fileno())
descriptor = os.open(sys.argv[1], os.O_RDONLY)
os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_RANDOM)
memory = mmap.mmap(descriptor, 0, prot=mmap.PROT_READ)
memory.madvise(mmap.MADV_RANDOM)
pages = len(memory) >> 12
while True:
    memory[random.randrange(pages) << 12]
";
    let enter = groups.map(|group| format!("echo $$ > {}; ", group.display())).concat();
    let mut command = daemon.command(Path::new("/bin/sh"));
    command.args(["-c", &format!("{enter} exec python3 -c \"$0\" \"$1\""), code]).arg(&file);
    let running = Running(command.spawn().expect("the program starts"));
    let mut looks = 0_u32;
    let kept = || {
        if looks.is_multiple_of(50) {
            let pressure = std::fs::read_to_string(group.0.join("memory.pressure")).unwrap_or_default();
            let written = std::fs::metadata(&file).map_or(0, |file| file.len());
            eprintln!("{written} bytes are written, and {}", pressure.lines().next().unwrap_or_default());
        }
        looks += 1;
        let metrics = daemon.ctl(&["metrics"]).success().text();
        metrics.lines().any(|line| line.contains("flight_kept_timestamp") && line.contains("pressure"))
    };
    until("the flight is kept", kept);
    drop(running);
}
