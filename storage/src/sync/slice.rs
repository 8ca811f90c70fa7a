//! What a thread that only hands work on asks of the scheduler: to be let in soon.
#![allow(unsafe_code)]

use std::mem::size_of;

/// The shortest slice the kernel grants, in nanoseconds.
const SHORTEST: u64 = 100_000;

/// Asks for the shortest slices of processor time for the calling thread. Its share stays the same, but
/// it comes before threads that compute as soon as it has work: with longer ones the mover of a store on
/// two cores waited a tenth of each flush for the two that took checksums. Linux 6.12 and later
/// (`sched_setattr(2)`, `sched_runtime`); an older one, and one that forbids it, leaves all as it was.
pub(crate) fn shorten() {
    let Some(mut attributes) = attributes() else { return };
    // A policy other than this one knows no slices of its own, or means a deadline with them.
    if attributes.sched_policy == libc::SCHED_OTHER as u32 {
        attributes.sched_runtime = SHORTEST;
        // SAFETY: the kernel reads as many bytes as `size` says, which is the value's.
        unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attributes, 0) };
    }
}

/// Returns the scheduler's attributes of the calling thread, priority among them.
fn attributes() -> Option<libc::sched_attr> {
    let size = size_of::<libc::sched_attr>() as u32;
    let mut attributes = libc::sched_attr {
        size,
        sched_policy: 0,
        sched_flags: 0,
        sched_nice: 0,
        sched_priority: 0,
        sched_runtime: 0,
        sched_deadline: 0,
        sched_period: 0,
    };
    // SAFETY: the kernel writes at most `size` bytes, which the value has.
    let got = unsafe { libc::syscall(libc::SYS_sched_getattr, 0, &raw mut attributes, size, 0) };
    (got == 0).then_some(attributes)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns whether the kernel has slices of a thread's own.
    fn has_slices() -> bool {
        let system = rustix::system::uname();
        let release = system.release().to_string_lossy();
        let mut numbers = release.split('.').map_while(|number| number.parse::<u32>().ok());
        (numbers.next(), numbers.next()) >= (Some(6), Some(12))
    }

    #[test]
    fn slices_get_short_and_nothing_else_changes() {
        let thread = std::thread::spawn(|| {
            // Counts for this thread alone.
            rustix::process::nice(3).unwrap();
            let before = attributes().unwrap();
            shorten();
            (before, attributes().unwrap())
        });
        let (before, after) = thread.join().unwrap();
        assert_eq!((before.sched_policy, before.sched_nice), (libc::SCHED_OTHER as u32, 3));
        assert_eq!((after.sched_policy, after.sched_nice), (libc::SCHED_OTHER as u32, 3));
        assert!(!has_slices() || after.sched_runtime == SHORTEST, "{}", after.sched_runtime);
    }
}
