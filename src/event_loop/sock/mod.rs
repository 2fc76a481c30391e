//! Awaitable socket calls: `sock_recv`, `sock_sendall`, `sock_accept`, `sock_recvfrom` and their kin.
//!
//! [`methods`] binds the arguments and makes a [`call`], the awaitable object. Each of its steps makes one [`attempt`], or
//! one of the [`exchange`]s that know addresses, and waits if that would block. [`file_transfer`] is what `sock_sendfile`
//! does.

mod attempt;
pub(crate) mod call;
mod exchange;
pub(crate) mod file_transfer;
pub(crate) mod methods;
