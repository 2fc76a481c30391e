//! Awaitable socket calls: `sock_recv`, `sock_sendall`, `sock_accept`, `sock_recvfrom` and the like.
//!
//! [`methods`] binds the arguments and creates a [`call`], the awaitable. Each of its steps makes an [`attempt`] (or an
//! [`exchange`], for calls with addresses), and waits if that would block. [`file_transfer`] is for `sock_sendfile`.

pub(crate) mod attempt;
pub(crate) mod call;
mod exchange;
pub(crate) mod file_transfer;
pub(crate) mod methods;
