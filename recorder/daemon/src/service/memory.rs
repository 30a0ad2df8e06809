//! Asks the kernel how much memory the processes have, and whether it killed one because memory ran
//! out.

use super::Service;
use crate::clients::KernelMemory;
use formats::recording::LastMemory;
use formats::tape::END_SIGNALLED;
use heaptape_recorder::session::SessionId;
use heaptape_recorder::target::cgroup;
use heaptape_recorder::target::proc::{self, End};
use nix::libc::SIGKILL;

/// Maximum number of processes whose resident memory is read in one check.
const MAX_READ: usize = 256;

/// Maximum number of lines in a minute about one user's programs that the kernel killed.
const MAX_LOGGED: u32 = 16;

impl Service {
    /// Returns the memory of a process that is recorded from now on.
    pub(super) fn kernel_memory(&mut self, pid: u32) -> KernelMemory {
        KernelMemory {
            resident: proc::resident_memory(pid).unwrap_or_default(),
            limit_bytes: cgroup::memory_limit(pid).unwrap_or(0),
            kills_file: self.out_of_memory.watch(pid),
            groups: self.pressure.groups(pid),
        }
    }

    /// Reads the resident memory of the processes, of many of them in turn. Called once a second.
    pub(super) fn measure_memory(&mut self) {
        let clients = self.registry.clients_mut();
        let count = clients.len();
        for index in 0..count.min(MAX_READ) {
            let client = &mut clients[(self.next_memory + index) % count];
            let pid = client.session.process.pid;
            client.memory.resident = proc::resident_memory(pid).unwrap_or(client.memory.resident);
        }
        self.next_memory = (self.next_memory + MAX_READ.min(count)).checked_rem(count).unwrap_or(0);
        let files = self.registry.clients().iter().filter_map(|client| client.memory.kills_file.as_deref());
        self.out_of_memory.renew(files);
    }

    /// Returns the memory of a process that has ended.
    pub(super) fn last_memory(&mut self, id: SessionId, end: End) -> Option<LastMemory> {
        let client = self.registry.client(id)?;
        let KernelMemory { resident, limit_bytes, kills_file, .. } = &client.memory;
        let mut last = LastMemory { resident_bytes: resident.bytes, limit_bytes: *limit_bytes, out_of_memory: false };
        if end == (End { reason: END_SIGNALLED, status: SIGKILL as u32 })
            && let Some(resident) = self.out_of_memory.explains(client.pid(), kills_file.as_deref())
        {
            last.out_of_memory = true;
            last.resident_bytes = resident.unwrap_or(last.resident_bytes);
            self.incidents.out_of_memory(client.uid, &client.name, &client.label);
            if let Some(more) = self.log.permits("memory", client.uid, MAX_LOGGED) {
                let (pid, name) = (client.pid(), client.name.escape_debug());
                tracing::warn!("process {pid} ({name}): the kernel killed it because memory ran out{more}");
            }
        }
        Some(last).filter(|last| *last != LastMemory::default())
    }
}
