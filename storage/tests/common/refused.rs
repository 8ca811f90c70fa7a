//! Threads for which the kernel refuses some calls, as an older kernel or an odd file system does.

use std::collections::BTreeMap;
use std::thread;

use seccompiler::{BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp};
use seccompiler::{SeccompCondition, SeccompFilter, SeccompRule, apply_filter};

/// A system call that is refused with an error number, always or for some arguments.
#[derive(Debug, Clone)]
pub(crate) struct Refused {
    call: i64,
    errno: i32,
    when: Vec<SeccompCondition>,
}

/// Returns that `call` fails with `errno`.
pub(crate) fn refused(call: i64, errno: i32) -> Refused {
    Refused { call, errno, when: Vec::new() }
}

impl Refused {
    /// Only if the bits `mask` of argument `index` are `value`.
    pub(crate) fn when(mut self, index: u8, mask: u64, value: u64) -> Self {
        let op = SeccompCmpOp::MaskedEq(mask);
        self.when.push(SeccompCondition::new(index, SeccompCmpArgLen::Dword, op, value).unwrap());
        self
    }

    fn apply(&self) {
        let rules = match self.when.is_empty() {
            true => Vec::new(),
            false => vec![SeccompRule::new(self.when.clone()).unwrap()],
        };
        let arch = std::env::consts::ARCH.try_into().unwrap();
        let refuse = SeccompAction::Errno(self.errno as u32);
        let rules = BTreeMap::from([(self.call, rules)]);
        let filter = SeccompFilter::new(rules, SeccompAction::Allow, refuse, arch).unwrap();
        let program: BpfProgram = filter.try_into().unwrap();
        apply_filter(&program).unwrap();
    }
}

/// Runs `test` on a thread for which, and for whose threads, these calls are refused.
pub(crate) fn where_refused<T: Send + 'static>(
    calls: &[Refused],
    test: impl FnOnce() -> T + Send + 'static,
) -> T {
    let calls = calls.to_vec();
    let tested = thread::spawn(move || {
        calls.iter().for_each(Refused::apply);
        test()
    });
    tested.join().unwrap()
}
