//! Waits for several descriptors at once.

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout};
use std::io;
use std::os::fd::BorrowedFd;
use std::time::Duration;

/// Waits until a descriptor is readable or closed, a signal arrives, or the time is over. Returns
/// for each descriptor, in the same order, whether it is ready.
pub fn wait<'fd>(descriptors: impl Iterator<Item = BorrowedFd<'fd>>, timeout: Duration) -> io::Result<Vec<bool>> {
    let mut polls: Vec<PollFd<'_>> = descriptors.map(|descriptor| PollFd::new(descriptor, PollFlags::POLLIN)).collect();
    // Rounded up: a shorter wait would end before what it waits for is due.
    let milliseconds = timeout.as_nanos().div_ceil(1_000_000);
    let timeout = i32::try_from(milliseconds).ok().and_then(|milliseconds| PollTimeout::try_from(milliseconds).ok());
    match nix::poll::poll(&mut polls, timeout.unwrap_or(PollTimeout::MAX)) {
        Ok(_) | Err(Errno::EINTR) => {}
        Err(error) => return Err(error.into()),
    }
    Ok(polls.iter().map(|poll| poll.any().unwrap_or(false)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;

    #[test]
    fn readiness_is_that_of_each_descriptor() {
        let (one, mut other) = UnixStream::pair().expect("sockets");
        let ready = |timeout| wait([other.as_fd(), one.as_fd()].into_iter(), timeout).expect("the state of both");
        assert_eq!(ready(Duration::from_micros(1)), [false, false]);
        other.write_all(b"x").expect("a byte");
        let ready = wait([other.as_fd(), one.as_fd()].into_iter(), Duration::MAX).expect("the state of both");
        assert_eq!(ready, [false, true]);
    }
}
