//! The events of the io_uring loop that do not come from a served connection: new clients, the
//! alarm that other threads ring, orders to close or stop, and sweeps.

use std::io;
use std::os::fd::{FromRawFd, OwnedFd};
use std::time::Duration;

use io_uring::types::Timespec;

use super::ring::{Completion, Op};
use super::{InFlight, Uring};
use crate::net::connection::Admission;
use crate::net::control::Order;
use crate::net::{Service, transport};

impl<S: Service> Uring<S> {
    pub(super) fn watch(&mut self) -> io::Result<()> {
        let alarm = self.core.shared.workers[self.core.index].alarm.fd();
        self.ring.watch(alarm)
    }

    pub(super) fn listen(&mut self) -> io::Result<()> {
        for (index, listener) in self.core.shared.options.listeners.iter().enumerate() {
            if !self.accepting[index] {
                self.accepting[index] = true;
                self.ring.accept(listener.fd(), index as u32)?;
            }
        }
        Ok(())
    }

    pub(super) fn accepted(&mut self, completion: Completion) -> io::Result<()> {
        if !completion.more() {
            self.accepting[completion.key as usize] = false;
        }
        if completion.result >= 0 {
            // SAFETY: the kernel has just created this descriptor, and it has no other owner.
            let socket = unsafe { OwnedFd::from_raw_fd(completion.result) };
            match self.core.admit(socket) {
                Admission::Own(socket) => self.attach(socket, true)?,
                Admission::Rejected(socket) => self.attach(socket, false)?,
                Admission::HandedOver => {}
            }
            if self.core.order == Order::Serve && self.core.accept_again.is_none() {
                self.listen()?;
            }
        } else if self.core.shared.order() == Order::Serve {
            match -completion.result {
                // The accepted client has already left, but another client may wait.
                libc::ECONNABORTED | libc::EPROTO | libc::EINTR | libc::EAGAIN => {
                    if self.core.accept_again.is_none() {
                        self.listen()?;
                    }
                }
                _ => self.core.accept_failed(),
            }
        }
        Ok(())
    }

    fn attach(&mut self, socket: OwnedFd, served: bool) -> io::Result<()> {
        if !served && !self.core.may_linger() {
            // Closes the connection at once, without lingering. The client has been sent an error
            // reply. The input is read first: on a close with unread input, the kernel resets the
            // connection, and the reset might overtake the reply.
            let _ = transport::receive(&socket, &mut self.input);
            return Ok(());
        }
        let key = self.core.insert(socket, served, InFlight::default());
        self.step(key)
    }

    pub(super) fn alarmed(&mut self) -> io::Result<()> {
        self.core.shared.workers[self.core.index].alarm.clear();
        self.core.note_relief_wanted();
        for socket in self.core.shared.take_over(self.core.index) {
            self.attach(socket, true)?;
        }
        self.core.queue_parked();
        let order = self.core.shared.order();
        if order > self.core.order {
            self.core.order = order;
            self.core.accept_again = None;
            self.stop_accepting()?;
            if order == Order::Stop {
                self.stop()?;
            }
        }
        Ok(())
    }

    /// Stops accepting on inherited listeners. [`Control`](crate::net::Control) has already stopped
    /// the other listeners.
    fn stop_accepting(&mut self) -> io::Result<()> {
        for (index, listener) in self.core.shared.options.listeners.iter().enumerate() {
            if listener.is_inherited() && self.accepting[index] {
                self.ring.cancel(Op::Accept, index as u32)?;
            }
        }
        Ok(())
    }

    /// Closes all connections that have no command or reply in flight. Also closes those that
    /// linger: they only wait until their clients end their input. Every other connection is closed
    /// once its commands are answered.
    fn stop(&mut self) -> io::Result<()> {
        for key in 0..self.core.connections.bound() {
            let Some(connection) = self.core.connections.get_mut(key) else { continue };
            if connection.service.is_none() {
                self.drop_connection(key)?;
            } else {
                self.step(key)?;
            }
        }
        Ok(())
    }

    pub(super) fn arm_timer(&mut self) -> io::Result<()> {
        let Some(wait) = self.core.wait_limit() else { return Ok(()) };
        if self.core.next_sweep() < self.timer_at {
            self.timer_at = self.core.next_sweep();
            // The timer is more exact than the coarse clock that decides if a sweep is due. Without
            // the added millisecond, the timer might end just before the sweep is due.
            *self.timer = Timespec::from(wait + Duration::from_millis(1));
            // SAFETY: `timer` is boxed, and is not changed before this turn submits it.
            unsafe { self.ring.start_timer(&raw const *self.timer)? };
        }
        Ok(())
    }

    pub(super) fn sweep(&mut self) -> io::Result<()> {
        for key in self.core.sweep() {
            self.drop_connection(key)?;
        }
        if self.core.has_given_up_clients() {
            self.stop()?;
        }
        if self.core.accept_due() {
            self.listen()?;
        }
        Ok(())
    }
}
