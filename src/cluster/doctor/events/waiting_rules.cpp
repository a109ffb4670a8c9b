// Time-outs and lost peers. They come before causes: such messages often guess at causes ("a network error").
#include "cluster/doctor/events/signs.h"

namespace braid {
namespace {

constexpr Rule kRules[] = {
    // Workers that could not meet.
    {"RendezvousTimeoutError", Sign::RendezvousFailed},
    {"Failed to meet rendezvous", Sign::RendezvousFailed, "'init'"},  // XLA
    {"RendezvousConnectionError", Sign::RendezvousFailed},
    {"RendezvousClosedError", Sign::RendezvousFailed},
    {"RendezvousStateError", Sign::RendezvousFailed},
    {"connection to the C10d store has failed", Sign::RendezvousFailed},
    {"waiting for clients", Sign::RendezvousFailed},
    {"clients joined", Sign::RendezvousFailed, "/"},
    {"client socket has timed out", Sign::RendezvousFailed},
    {"client socket has failed to connect to any", Sign::RendezvousFailed},
    {"client socket has failed to connect to", Sign::RendezvousFailed, nullptr, "[W"},
    {"IPv4 network addresses of", Sign::RendezvousFailed, "cannot be retrieved", "[W"},
    {"IPv6 network addresses of", Sign::RendezvousFailed, "cannot be retrieved", "[W"},
    {"hostname of the client socket cannot", Sign::RendezvousFailed, nullptr, "[W"},
    {"EtcdConnectionFailed", Sign::RendezvousFailed},
    {"etcd.Etcd", Sign::RendezvousFailed},
    {"connectFullMesh", Sign::RendezvousFailed},
    {"in store based barrier", Sign::RendezvousFailed},
    {"onnect() timed out", Sign::RendezvousFailed},
    {"kvs_init: ", Sign::RendezvousFailed, "rror"},       // oneCCL
    {"_topology/", Sign::RendezvousFailed, "timed out"},  // JAX
    {"Ranktable Detect Failed", Sign::RendezvousFailed},  // Ascend
    {"rank table timeout", Sign::RendezvousFailed},
    {"has already checked in", Sign::RendezvousFailed},  // NCCL
    {"mismatched rank count", Sign::RendezvousFailed},
    {"have assigned same rank", Sign::RendezvousFailed},
    {"waiting for rendezvous", Sign::RendezvousFailed, "imed out"},  // Determined
    {"not all containers are connected", Sign::RendezvousFailed},
    {"StartAbort", Sign::RendezvousFailed, "DEADLINE_EXCEEDED"},  // TensorFlow
    {"cluster registration failed", Sign::RendezvousFailed},      // JAX
    {"Barrier timed out", Sign::RendezvousFailed, "to_register"},
    {"Barrier timed out", Sign::RendezvousFailed, "[Init]"},
    {"Barrier timed out", Sign::RendezvousFailed, "Connect"},
    {"Barrier timed out", Sign::CollectiveTimeout},
    {"coordination service", Sign::RendezvousFailed, "DEADLINE_EXCEEDED"},
    {"Timed out waiting for all workers", Sign::RendezvousFailed},
    {"Timed out waiting for workers", Sign::RendezvousFailed},
    {"Timed out initializing process group", Sign::RendezvousFailed},
    {"Rendezvous timed out", Sign::RendezvousFailed},
    {"connectOrTimeout", Sign::RendezvousFailed},
    {"Failed to connect to GCS", Sign::RendezvousFailed},  // Ray
    {"Could not find any running Ray instance", Sign::RendezvousFailed},
    {"Unable to connect to GCS", Sign::RendezvousFailed},
    {"rendezvous timed out", Sign::RendezvousFailed},
    {"rendezvous timeout", Sign::RendezvousFailed},
    {"Timeout waiting for rank 0", Sign::RendezvousFailed},
    {"The server socket at", Sign::RendezvousFailed, "timed out"},
    {"Timed out waiting for slots", Sign::RendezvousFailed},  // Horovod
    {"imeout waiting for slots", Sign::RendezvousFailed},
    {"Horovod unable to connect", Sign::RendezvousFailed},
    {"Horovod detected that one or more processes exited", Sign::Stopped},
    {"waiting for all tasks to connect", Sign::RendezvousFailed},  // JAX
    {"RegisterTask", Sign::RendezvousFailed, "DEADLINE_EXCEEDED"},
    {"/RegisterTask:", Sign::RendezvousFailed, "rror"},
    {"Failed to connect to distributed JAX controller", Sign::RendezvousFailed},
    {"Timed out waiting for node rank", Sign::RendezvousFailed},
    {"Timeout waiting for the placement group", Sign::RendezvousFailed},

    {"ing ncclUniqueId from", Sign::UniqueIdTimeout, nullptr, "onnection"},  // older versions: "retreiving"
    {"failed to pass monitoredBarrier", Sign::MonitoredBarrier},
    {"successfully reached monitoredBarrier", Sign::ConnectionLost},
    {"ast enqueued NCCL work", Sign::LastEnqueued},
    {"ast enqueued work", Sign::LastEnqueued},
    {"aught collective operation timeout", Sign::CollectiveTimeout},
    {"watchdog thread terminated", Sign::CollectiveTimeout},
    {"watchdog got stuck", Sign::CollectiveTimeout},
    {"watchdog hang", Sign::CollectiveTimeout},
    {"Heartbeat monitor timed out", Sign::CollectiveTimeout},
    {"Notify register times out", Sign::CollectiveTimeout},  // Ascend
    {"Getting socket times out", Sign::CollectiveTimeout},
    {"Remote Rank did not send the data in time", Sign::CollectiveTimeout},
    {" stalled for ", Sign::CollectiveTimeout, "hutdown"},  // Horovod
    {"Wait timeout for ", Sign::CollectiveTimeout},
    {"notify wait timeout", Sign::CollectiveTimeout},
    {"stream sync timeout", Sign::CollectiveTimeout},
    {"507046", Sign::CollectiveTimeout, "rror code"},
    {"107020", Sign::CollectiveTimeout, "rror code"},
    {"Termination timeout for", Sign::CollectiveTimeout},  // XLA
    {"Exiting to ensure a consistent program state", Sign::CollectiveTimeout},
    {"ollective operation timed out", Sign::CollectiveTimeout},
    {"Timeout waiting for barrier", Sign::CollectiveTimeout},
    {"barrier timed out", Sign::CollectiveTimeout},
    {"arrier timeout", Sign::CollectiveTimeout},
    {"Timeout at NCCL work", Sign::CollectiveTimeout},
    {"timeout at NCCL work", Sign::CollectiveTimeout},
    {"Timeout at collective", Sign::CollectiveTimeout},
    {"failure detected by watchdog", Sign::CollectiveTimeout},
    {"Some NCCL operations have failed or timed out", Sign::CollectiveTimeout},
    {"flight recorder dump signal", Sign::CollectiveTimeout},
    {"Received a dump signal", Sign::CollectiveTimeout},
    {"Timed out waiting ", Sign::CollectiveTimeout, "operation to complete"},
    {"Application timeout caused pair closure", Sign::CollectiveTimeout},
    {"exit barrier", Sign::CollectiveTimeout, "timed out"},
    {"RuntimeError: [Rank ", Sign::CollectiveTimeout, "imeout"},
    {"Got completion from peer", Sign::NetworkTrouble},
    {"Got async event", Sign::NetworkTrouble},
    {"async fatal event", Sign::NetworkTrouble},
    {"Got CQE with error", Sign::NetworkTrouble},
    {"Bootstrap Root : mismatch in", Sign::RendezvousFailed},
    {"Got completion with status", Sign::NetworkTrouble},
    {"Got completion with error", Sign::NetworkTrouble},
    {"function error: Hccl", Sign::ConnectionLost},
    {"HCCL error in", Sign::ConnectionLost},
    {"HCCL function error", Sign::ConnectionLost},
    {"atl_status: FAILURE", Sign::ConnectionLost},  // oneCCL
    {"call hccl api failed", Sign::ConnectionLost},
    {"Inner error is reported as above", Sign::ConnectionLost, "Hccl"},
    {": oneCCL: ", Sign::ConnectionLost, "transport"},
    {": oneCCL: atl", Sign::ConnectionLost},
    {"Getaddrinfo failed", Sign::NetworkTrouble},
    {"gaierror", Sign::NetworkTrouble},
    {"failed to connect to all addresses", Sign::NetworkTrouble},  // gRPC
    {"Transport endpoint is not connected", Sign::NetworkTrouble},
    {"Connection shutdown by", Sign::NetworkTrouble},
    {"Destination is unreachable", Sign::NetworkTrouble},
    {"Endpoint timeout", Sign::NetworkTrouble},
    {"IBV_WC_", Sign::NetworkTrouble, nullptr, "SUCCESS"},
    {"Network is down", Sign::NetworkTrouble},
    {"Host is down", Sign::NetworkTrouble},
    {"Cannot assign requested address", Sign::NetworkTrouble},
    {"Network dropped connection", Sign::NetworkTrouble},
    {"Call to connect", Sign::NetworkTrouble, "failed"},  // NCCL
    {"NCCL WARN Net : Connect to", Sign::NetworkTrouble},
    {"NCCL WARN Timeout waiting for", Sign::NetworkTrouble},
    {"NCCL WARN Connect to", Sign::NetworkTrouble},
    {"ORTE_ERROR_LOG: Unreachable", Sign::NetworkTrouble},
    {"ORTE does not know how to route a message", Sign::NetworkTrouble},
    {"MPIDI_OFI_", Sign::NetworkTrouble, "failed"},  // MPICH
    {"unable to reach each other for", Sign::NetworkTrouble},
    {"PML add procs failed", Sign::NetworkTrouble},
    {"process is unreachable from another", Sign::NetworkTrouble},
    {"failed to TCP connect to a peer", Sign::NetworkTrouble},
    {"failed to handshake with a connecting peer", Sign::NetworkTrouble},
    {"PSM2 was unable to open an endpoint", Sign::NetworkTrouble},
    {"in attempting to make network progress", Sign::NetworkTrouble},
    {"No usable network interfaces were found", Sign::NetworkTrouble},
    {"A critical communication path was lost", Sign::ConnectionLost},
    {"Socket timed out on send/recv operation", Sign::NetworkTrouble},  // Slurm
    {"Unable to contact slurm controller", Sign::NetworkTrouble},
    {"unable to complete a TCP connection", Sign::NetworkTrouble},  // mpirun
    {"link flap", Sign::NetworkTrouble},
    {"ibv_create_", Sign::NetworkTrouble, "ailed"},
    {"ibv_poll_cq", Sign::NetworkTrouble, "ailed"},
    {"fi_cq_read", Sign::NetworkTrouble, "rror"},
    {"NCCL WARN NET/Socket", Sign::NetworkTrouble, "error"},
    {"transport retry", Sign::NetworkTrouble, "xceed"},
    {"No route to host", Sign::NetworkTrouble},
    {"Network is unreachable", Sign::NetworkTrouble},
    {"Name or service not known", Sign::NetworkTrouble},
    {"Temporary failure in name resolution", Sign::NetworkTrouble},
    {"nodename nor servname provided", Sign::NetworkTrouble},
    {"Connection timed out", Sign::NetworkTrouble},
    {"Connection refused", Sign::NetworkTrouble},
    {"ibv_modify_qp failed", Sign::NetworkTrouble},
    {"Call to ibv_", Sign::NetworkTrouble, "failed", "_device"},  // a device that NCCL cannot open it does without
    {"ibv_reg_mr", Sign::NetworkTrouble, "ailed"},
    {"retry count exceeded", Sign::NetworkTrouble},
    {"RETRY_EXC_ERR", Sign::NetworkTrouble},
    {"NET/OFI", Sign::NetworkTrouble, "with error"},
    {"UCX  ERROR", Sign::NetworkTrouble},
    {"no socket interface found", Sign::NetworkTrouble},
    {"Unable to find address for", Sign::NetworkTrouble},
    {"wait timeout after", Sign::StoreTimeout},
    {"Socket Timeout", Sign::StoreTimeout},
    {"Timeout waiting for key", Sign::StoreTimeout},
    {"DistStoreError", Sign::StoreTimeout},
    {"remote process exited or there was a network error", Sign::ConnectionLost},
    {"ncclRemoteError", Sign::ConnectionLost},
    {"Collective ops is aborted by", Sign::ConnectionLost},  // TensorFlow
    {"Connection closed by", Sign::ConnectionLost},
    {"onnection reset by peer", Sign::ConnectionLost},
    {"Connection reset by remote peer", Sign::ConnectionLost},
    {"Socket recv failed while polling", Sign::ConnectionLost},
    {"onnection was likely closed", Sign::ConnectionLost},
    {"failed to recv, got 0 bytes", Sign::ConnectionLost},
    {"recvValue failed", Sign::ConnectionLost},
    {"Could not receive type from localRank", Sign::ConnectionLost},  // NCCL
    {"Failed to execute operation", Sign::ConnectionLost, "rank"},
    {"Software caused connection abort", Sign::ConnectionLost},
    {"HYDU_sock_", Sign::ConnectionLost, "error"},  // MPICH
    {"one of the processes terminated badly", Sign::Stopped},
    {"peer process has unexpectedly disconnected", Sign::ConnectionLost},     // Open MPI
    {"tried to connect with a different incarnation", Sign::ConnectionLost},  // JAX
    {"JAX distributed service detected fatal errors", Sign::ConnectionLost},
    {"Read error [", Sign::ConnectionLost, "gloo"},
    {"Write error [", Sign::ConnectionLost, "gloo"},
    {"RendezvousGracefulExitError", Sign::Stopped},
    {"sendBytes failed", Sign::ConnectionLost},
    {"RPC client disassociated", Sign::ConnectionLost},  // Spark
    {"Socket closed", Sign::ConnectionLost},
    {"client_loop: send disconnect", Sign::Stopped},  // the user's terminal
    {"Broken pipe", Sign::ConnectionLost},
    {"NCCL communicator was aborted", Sign::ConnectionLost},
    {"Horovod has been shut down", Sign::Stopped},
    {"LocalRayletDiedError", Sign::ConnectionLost},
    {"OwnerDiedError", Sign::ConnectionLost},
    {"ObjectLostError", Sign::ConnectionLost},
    {"Socket operation on non-socket", Sign::ConnectionLost},
    {"HorovodInternalError", Sign::ConnectionLost},
    {"ActorDiedError", Sign::ConnectionLost},
    {"ActorUnavailableError", Sign::ConnectionLost},
    {"WorkerCrashedError", Sign::ConnectionLost},
    {"RayActorError", Sign::ConnectionLost},
    {"closing signal SIGTERM", Sign::Stopped},
    {"Termination signal", Sign::Stopped, "is detected by"},  // Paddle
    {"*** SIGTERM (", Sign::Stopped},
    {"ChildFailedError", Sign::Stopped},
};

}  // namespace

std::span<const Rule> waiting_rules() { return kRules; }

}  // namespace braid
