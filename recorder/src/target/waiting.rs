//! What a thread does at this moment, as the kernel tells it of a thread that nobody stops (proc(5),
//! `syscall`).

/// What a thread does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Doing {
    /// It runs, or is about to; or the kernel does not tell.
    Runs,
    /// It waits in the kernel, and not in a system call: for a page, or a tracer has it.
    WaitsOutside { stack_pointer: u64 },
    /// It waits in a system call.
    Calls(Call),
}

/// The system call that a thread waits in.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Call {
    pub number: i64,
    pub arguments: [u64; 6],
    pub stack_pointer: u64,
    /// Address of the instruction after it.
    pub next: u64,
}

/// Returns what a thread does.
pub(crate) fn doing(pid: u32, tid: u32) -> Doing {
    parsed(&std::fs::read_to_string(format!("/proc/{pid}/task/{tid}/syscall")).unwrap_or_default())
}

fn parsed(text: &str) -> Doing {
    let mut fields = text.split_ascii_whitespace();
    let number = fields.next().and_then(|number| number.parse::<i64>().ok());
    let words: Vec<u64> =
        fields.map_while(|word| u64::from_str_radix(word.strip_prefix("0x").unwrap_or(word), 16).ok()).collect();
    match (number, &words[..]) {
        (Some(-1), &[stack_pointer, _]) => Doing::WaitsOutside { stack_pointer },
        (Some(number), &[a, b, c, d, e, f, stack_pointer, next]) => {
            Doing::Calls(Call { number, arguments: [a, b, c, d, e, f], stack_pointer, next })
        }
        _ => Doing::Runs,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_lines_are_read() {
        let arguments = [0x7f00, 0x80, 1, 0, 0, 0xffff_ffff];
        let call = Call { number: 202, arguments, stack_pointer: 0x7ffc, next: 0x7f12 };
        assert_eq!(parsed("202 0x7f00 0x80 0x1 0x0 0x0 0xffffffff 0x7ffc 0x7f12\n"), Doing::Calls(call));
        assert_eq!(parsed("-1 0x7ffc 0x7f12\n"), Doing::WaitsOutside { stack_pointer: 0x7ffc });
        for other in ["running\n", "", "202 0x1\n", "x"] {
            assert_eq!(parsed(other), Doing::Runs, "{other}");
        }
    }

    #[test]
    fn a_sleeping_thread_of_ours_is_seen_to_wait() {
        let (send, receive) = std::sync::mpsc::channel::<()>();
        let (tell, told) = std::sync::mpsc::channel();
        let thread = std::thread::spawn(move || {
            tell.send(nix::unistd::gettid().as_raw().cast_unsigned()).expect("a listener");
            let _ = receive.recv();
        });
        let tid = told.recv().expect("its id");
        let is_waiting = || matches!(doing(std::process::id(), tid), Doing::Calls(_));
        while !is_waiting() {
            std::thread::yield_now();
        }
        drop(send);
        thread.join().expect("it ends");
    }
}
