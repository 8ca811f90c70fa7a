//! What the system says of this process: processor time and memory.

use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

use crate::Failure;

/// Returns the processor time of all threads of this process so far, user and system.
pub fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Returns the processor time of the calling thread so far, user and system.
pub fn thread_cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// How long something took, on the clock and on processors.
#[derive(Debug, Clone, Copy, Default)]
pub struct Took {
    /// Seconds that passed.
    pub seconds: f64,
    /// Seconds of processor time of all threads.
    pub cpu: f64,
}

/// Measures a call.
///
/// # Errors
/// Those of the call.
pub fn took(call: impl FnOnce() -> Result<(), Failure>) -> Result<Took, Failure> {
    let (begin, cpu) = (Instant::now(), cpu_time());
    call()?;
    let cpu = (cpu_time() - cpu).as_secs_f64();
    Ok(Took { seconds: begin.elapsed().as_secs_f64(), cpu })
}

/// Returns the anonymous and shared memory of this process in bytes, huge pages included.
///
/// # Errors
/// What the system said.
pub fn anonymous_bytes() -> Result<u64, Failure> {
    let text = std::fs::read_to_string("/proc/self/status")?;
    let field = |name: &str| -> u64 {
        let line = text.lines().find_map(|line| line.strip_prefix(name));
        let kib = line.and_then(|rest| rest.split_whitespace().next());
        kib.and_then(|kib| kib.parse::<u64>().ok()).unwrap_or(0) << 10
    };
    Ok(field("RssAnon:") + field("RssShmem:"))
}
