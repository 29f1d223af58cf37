//! Facts about the machine, for reports and result files, and control over its processors.

use std::fs;

use serde::{Deserialize, Serialize};

use crate::{Error, Result};

/// The machine on which a measurement ran.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Machine {
    /// The processor's name.
    pub cpu: String,
    /// Number of processors that this process may use.
    pub cpus: usize,
    /// Memory in bytes.
    pub memory: u64,
    /// Kernel name and release.
    pub kernel: String,
}

impl Machine {
    /// Reads the facts about this machine. Unknown facts are empty or 0.
    pub fn here() -> Machine {
        let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
        let field = |text: &str, name: &str| {
            let line = text.lines().find(|line| line.starts_with(name));
            line.and_then(|line| line.split_once(':')).map(|(_, value)| value.trim().to_owned())
        };
        let memory = field(&read("/proc/meminfo"), "MemTotal").unwrap_or_default();
        let kilobytes: u64 = memory.trim_end_matches(" kB").parse().unwrap_or(0);
        Machine {
            cpu: field(&read("/proc/cpuinfo"), "model name").unwrap_or_default(),
            cpus: std::thread::available_parallelism().map_or(0, usize::from),
            memory: kilobytes * 1024,
            kernel: format!(
                "{} {}",
                read("/proc/sys/kernel/ostype").trim(),
                read("/proc/sys/kernel/osrelease").trim()
            ),
        }
    }

    /// Returns the facts in one line, for reports.
    pub fn line(&self) -> String {
        let gigabytes = self.memory as f64 / f64::from(1 << 30);
        format!("{}, {} processors, {gigabytes:.0} GiB, {}", self.cpu, self.cpus, self.kernel)
    }
}

/// Returns the number of processors that this process may use; 1 if it is unknown.
pub(crate) fn processors() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Pins the calling thread, and all threads that it starts later, to one processor.
///
/// # Errors
/// Returns [`Error::Usage`] if the processor does not exist or the process may not use it.
pub fn pin_thread(cpu: usize) -> Result<()> {
    let limit = 8 * size_of::<libc::cpu_set_t>();
    if cpu >= limit {
        return Err(Error::usage(format!("there is no processor {cpu}")));
    }
    // SAFETY: an all-zero set is a valid empty set, the index is below its size, and the kernel
    // reads the local variable only during the call.
    let answer = unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(cpu, &mut set);
        libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &set)
    };
    if answer < 0 {
        let error = std::io::Error::last_os_error();
        return Err(Error::usage(format!("cannot run on processor {cpu}: {error}")));
    }
    Ok(())
}

/// Gives the lowest priority to the calling thread and to threads that it starts later.
///
/// # Errors
/// Returns [`Error::Io`] if the kernel refuses.
pub(crate) fn take_lowest_priority() -> Result<()> {
    // SAFETY: the call takes no pointers. On Linux priorities are per thread, and 0 names the
    // caller.
    match unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, 19) } {
        0 => Ok(()),
        _ => Err(Error::io("cannot lower the priority", std::io::Error::last_os_error())),
    }
}

/// Raises the limit of open files as far as this process may, so that it can open thousands of
/// connections. A failure shows later, when a connection cannot be opened.
pub(crate) fn allow_many_files() {
    let _ = larder_server::process::raise_file_limit(0);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_has_a_name_and_memory() {
        let machine = Machine::here();
        assert!(machine.cpus > 0 && machine.memory > 0);
        assert!(machine.kernel.starts_with("Linux "), "{}", machine.kernel);
    }

    #[test]
    fn threads_inherit_the_lowest_priority() {
        // SAFETY: takes no pointers.
        let priority = || unsafe { libc::getpriority(libc::PRIO_PROCESS, 0) };
        let before = priority();
        let inherited = std::thread::spawn(move || {
            take_lowest_priority().unwrap();
            std::thread::spawn(priority).join().unwrap()
        });
        assert_eq!((inherited.join().unwrap(), priority()), (19, before));
    }

    #[test]
    fn a_processor_that_does_not_exist_is_named() {
        let thread = std::thread::spawn(|| (pin_thread(0), pin_thread(999), pin_thread(1 << 20)));
        let (first, absent, absurd) = thread.join().unwrap();
        assert!(first.is_ok());
        assert!(absent.unwrap_err().to_string().contains("999"));
        assert!(absurd.is_err());
    }
}
