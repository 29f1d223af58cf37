//! The responder: a server in the lab's own process that only sends replies. It costs hardly more
//! than its sockets cost on this machine. The lab compares other servers with it.

#[cfg(test)]
mod cost;
mod reads;
mod service;

use crate::complain;
use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use larder_client::Address;
use larder_disk::{Device, FileDevice, ReadBuffer};
use larder_server::net::{BackendChoice, Control, Endpoint, Listener, Options, open};

use crate::machine::pin_thread;
use crate::process::Probe;
use crate::{Error, Result};
use reads::Reads;
use service::NullService;

/// Name prefixes of the responder's threads, and of the kernel's worker threads for its io_uring
/// instances.
const THREADS: &[&str] = &["responder-", "iou-wrk-"];

/// Number of blocks of a device that are read before a run, to check that reads reach the device.
const SAMPLES: u64 = 256;
/// Size of each of these blocks in bytes.
const BLOCK: u64 = 4096;

/// A running responder. Dropping it stops the responder.
#[derive(Debug)]
pub(crate) struct Responder {
    _running: ResponderThreads,
    pub(crate) address: Address,
    pub(crate) probe: Probe,
}

/// Parses the name of a network back-end.
pub(crate) fn backend(name: &str) -> Result<BackendChoice> {
    match name {
        "auto" => Ok(BackendChoice::Auto),
        "epoll" => Ok(BackendChoice::Epoll),
        "uring" => Ok(BackendChoice::Uring),
        _ => Err(Error::usage(format!("{name:?} is no back-end: auto, epoll or uring"))),
    }
}

/// Opens an existing file or device for reading only.
fn open_device(path: &Path) -> Result<Arc<dyn Device>> {
    let failed = |error| Error::io(format!("cannot read {}", path.display()), error);
    if std::fs::metadata(path).map_err(failed)?.is_dir() {
        return Err(Error::usage(format!(
            "{} is a directory: name the file in it",
            path.display()
        )));
    }
    let device = FileDevice::open_to_read(path).map_err(|e| Error::server(e.to_string()))?;
    if let Some(hidden) = hidden_blocks(path, device.size()).filter(|hidden| *hidden > 0) {
        complain!(
            "READS THAT REACH NO DEVICE: {hidden} of {SAMPLES} blocks of {} were never written, or lie in a cache; \
             write it from end to end first",
            path.display()
        );
    }
    Ok(Arc::new(device))
}

/// Reads [`SAMPLES`] blocks past the page cache. Returns how many of them did not come from the
/// device, or `None` if that is unknown. A block may have been allocated but never written: then
/// the file system returns zeros without reading the device.
fn hidden_blocks(path: &Path, size: u64) -> Option<u64> {
    let file = File::options().read(true).custom_flags(libc::O_DIRECT).open(path).ok()?;
    let before = bytes_from_devices()?;
    let blocks = size / BLOCK;
    for sample in 0..SAMPLES {
        let offset = (u128::from(blocks) * u128::from(sample) / u128::from(SAMPLES)) as u64 * BLOCK;
        let mut block = ReadBuffer::new(offset, BLOCK as usize, BLOCK as usize);
        file.read_exact_at(block.bytes_mut(), offset).ok()?;
    }
    let came = (bytes_from_devices()? - before) / BLOCK;
    Some(SAMPLES.saturating_sub(came))
}

/// Returns the bytes that this process has read from devices.
fn bytes_from_devices() -> Option<u64> {
    let counts = std::fs::read_to_string("/proc/self/io").ok()?;
    counts.lines().find_map(|line| line.strip_prefix("read_bytes: ")?.parse().ok())
}

impl Responder {
    /// Starts one thread that answers gets with values of `value_size` bytes. Pins it to `cpu`, if
    /// given.
    pub(crate) fn start(io: &str, cpu: Option<usize>, value_size: usize) -> Result<Responder> {
        Responder::start_on(io, cpu, value_size, 1, None)
    }

    /// Like [`Responder::start`], but with several threads. With a device, the threads read from it
    /// once for each key of a get.
    pub(crate) fn start_on(
        io: &str,
        cpu: Option<usize>,
        value_size: usize,
        threads: usize,
        device: Option<&Path>,
    ) -> Result<Responder> {
        let device = device.map(open_device).transpose()?;
        let endpoint = Endpoint::Tcp(([127, 0, 0, 1], 0).into());
        let listener = Listener::bind(&endpoint).map_err(|e| Error::server(e.to_string()))?;
        let address = Address::Tcp(listener.endpoint().to_string());
        let options = Options {
            backend: backend(io)?,
            listeners: vec![listener],
            max_connections: 20_000,
            ..Options::default()
        };
        let running = thread::scope(|scope| {
            // The responder's threads inherit the affinity of the thread that starts them.
            let start = scope.spawn(move || {
                cpu.map_or(Ok(()), pin_thread)?;
                ResponderThreads::start(options, threads, value_size, device)
                    .map_err(|e| Error::io("cannot start the responder", e))
            });
            start.join().unwrap_or_else(|_| Err(Error::server("the starting thread panicked")))
        })?;
        Ok(Responder { _running: running, address, probe: Probe::own_threads(THREADS) })
    }
}

/// The responder's threads. Dropping this ends them.
#[derive(Debug)]
struct ResponderThreads {
    control: Control,
    threads: Vec<JoinHandle<io::Result<()>>>,
}

impl ResponderThreads {
    /// Starts `workers` threads that answer with values of `value_size` bytes. With a device, each
    /// key of a get costs a read of `value_size` bytes. The threads inherit the caller's processor
    /// affinity.
    fn start(
        options: Options,
        workers: usize,
        value_size: usize,
        device: Option<Arc<dyn Device>>,
    ) -> io::Result<ResponderThreads> {
        let (control, workers) = open(options, workers)?;
        let mut running = ResponderThreads { control, threads: Vec::new() };
        for worker in workers {
            let name = format!("responder-{}", worker.index());
            let mut service = NullService::new(value_size);
            if let Some(device) = &device {
                service.reads =
                    Some(Reads::new(&**device, value_size, worker.event(), worker.waker())?);
            }
            let run = move || worker.run(service);
            running.threads.push(thread::Builder::new().name(name).spawn(run)?);
        }
        Ok(running)
    }
}

impl Drop for ResponderThreads {
    fn drop(&mut self) {
        self.control.shut_down(Duration::ZERO);
        for thread in self.threads.drain(..) {
            // A run's results do not depend on how its threads end, so a panic is ignored.
            let _ = thread.join();
        }
    }
}
