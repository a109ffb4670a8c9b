// Downloads. They come before lost peers: their messages name what went wrong with the network.
#include "cluster/doctor/events/signs.h"

namespace braid {
namespace {

constexpr Rule kRules[] = {
    // Not its good answers, and not its pages of documentation.
    {"huggingface.co", Sign::HubUnreachable, "OSError", "huggingface.co/docs"},
    {"huggingface.co", Sign::HubUnreachable, "EnvironmentError", "huggingface.co/docs"},
    {"huggingface.co", Sign::HubUnreachable, "onnection err", "huggingface.co/docs"},
    {"huggingface.co", Sign::HubUnreachable, "ConnectionErr", "huggingface.co/docs"},
    {"huggingface.co", Sign::HubUnreachable, "ConnectErr", "huggingface.co/docs"},
    {"huggingface.co", Sign::HubUnreachable, "ailed to connect", "huggingface.co/docs"},
    {"huggingface.co", Sign::HubUnreachable, "annot connect", "huggingface.co/docs"},
    {"huggingface.co", Sign::HubUnreachable, "ouldn't connect", "huggingface.co/docs"},
    {"huggingface.co", Sign::HubUnreachable, "ould not connect", "huggingface.co/docs"},
    {"huggingface.co", Sign::HubUnreachable, "nable to connect", "huggingface.co/docs"},
    {"huggingface.co", Sign::HubUnreachable, "onnection refused", "huggingface.co/docs"},
    {"huggingface.co", Sign::HubUnreachable, "onnection reset", "huggingface.co/docs"},
    {"huggingface.co", Sign::HubUnreachable, "imed out", "huggingface.co/docs"},
    {"huggingface.co", Sign::HubUnreachable, "TimeoutE", "huggingface.co/docs"},
    {"huggingface.co", Sign::HubUnreachable, "ConnectTimeout", "huggingface.co/docs"},
    {"huggingface.co", Sign::HubUnreachable, "ReadTimeout", "huggingface.co/docs"},
    {"huggingface.co", Sign::HubUnreachable, "HTTPError", "huggingface.co/docs"},
    {"huggingface.co", Sign::HubUnreachable, "HTTP Error", "huggingface.co/docs"},
    {"huggingface.co", Sign::HubUnreachable, "HTTP error", "huggingface.co/docs"},
    {"huggingface.co", Sign::HubUnreachable, "Error: 4", "huggingface.co/docs"},
    {"huggingface.co", Sign::HubUnreachable, "FoundError", "huggingface.co/docs"},
    {"huggingface.co", Sign::HubUnreachable, "We couldn't", "huggingface.co/docs"},
    {"huggingface.co", Sign::HubUnreachable, "... failed: ", "huggingface.co/docs"},
    {"huggingface.co", Sign::HubUnreachable, "unable to resolve", "huggingface.co/docs"},
    {"hf-mirror.com", Sign::HubUnreachable, "Error"},
    {"HTTPSConnectionPool(host=", Sign::HubUnreachable},
    {"HTTPConnectionPool(host=", Sign::HubUnreachable},
    {"HfHubHTTPError", Sign::HubUnreachable},
    {"LocalEntryNotFoundError", Sign::HubUnreachable},
    {"RepositoryNotFoundError", Sign::HubUnreachable},
    {"RevisionNotFoundError", Sign::HubUnreachable},
    {"GatedRepoError", Sign::HubUnreachable},
    {"OfflineModeIsEnabled", Sign::HubUnreachable},
    {"gated repo", Sign::HubUnreachable},
    {"Client Error: ", Sign::HubUnreachable, "for url"},
    {"Server Error: ", Sign::HubUnreachable, "for url"},
    {"Error executing an HTTP request", Sign::HubUnreachable},  // Google's storage
    {"ouldn't connect to the Hub", Sign::HubUnreachable},
    {"error sending request for url (", Sign::HubUnreachable},  // Xet
    {"HTTP status client error (", Sign::HubUnreachable},
    {"HTTP status server error (", Sign::HubUnreachable},
    {"not find the requested files in the disk cache", Sign::HubUnreachable},
    {"not a valid model identifier listed on", Sign::HubUnreachable},
    {"is not a local folder and is not a valid model", Sign::HubUnreachable},
    {"in the cached files and it looks like", Sign::HubUnreachable},
    {"outgoing traffic has been disabled", Sign::HubUnreachable},
    {"Max retries exceeded with url", Sign::HubUnreachable},
    {"RemoteDisconnected(", Sign::HubUnreachable},
    {"(Request ID: ", Sign::HubUnreachable},
    {"Unable to connect to proxy", Sign::HubUnreachable},
    {"Cannot connect to proxy", Sign::HubUnreachable},
    {"SSLCertVerificationError", Sign::HubUnreachable},
    {"CERTIFICATE_VERIFY_FAILED", Sign::HubUnreachable},
    {"SSLEOFError", Sign::HubUnreachable},
    {"Consistency check failed: file should be of size", Sign::HubUnreachable},
    {"NoSuchBucket", Sign::HubUnreachable},
    {"NoCredentialsError", Sign::HubUnreachable},
    {"ExpiredToken", Sign::HubUnreachable},
    {"An error occurred (", Sign::HubUnreachable, "when calling"},
    {"Unable to locate credentials", Sign::HubUnreachable},
    {"download failed: s3://", Sign::HubUnreachable},
    {"Smudge error", Sign::HubUnreachable},                // git lfs
    {"AccessDeniedException: 403", Sign::HubUnreachable},  // gsutil
    {"ServiceException: 4", Sign::HubUnreachable},
    {"curl: (", Sign::HubUnreachable, nullptr, "curl: (23)"},
    {"wget: unable to resolve host", Sign::HubUnreachable},
    {"fatal: unable to access 'http", Sign::HubUnreachable},
    {"Could not resolve host: ", Sign::HubUnreachable},
    {"HTTP Error 4", Sign::HubUnreachable},
    {"HTTP Error 5", Sign::HubUnreachable},
    {"NonMatchingChecksumError", Sign::HubUnreachable},
    {"nltk.download", Sign::HubUnreachable, "Error"},
    {"ConnectionError: Couldn't reach", Sign::HubUnreachable},
    {"locate the file on the Hub", Sign::HubUnreachable},
    {"couldn't connect to 'https://", Sign::HubUnreachable},
    {"urlopen error", Sign::HubUnreachable},
    {"E: Failed to fetch http", Sign::HubUnreachable},  // apt
    {"urllib.error.HTTPError", Sign::HubUnreachable},
    {"requests.exceptions.HTTPError", Sign::HubUnreachable},
    {"aiohttp.client_exceptions.Client", Sign::HubUnreachable},
    {"EndpointConnectionError", Sign::HubUnreachable},  // of S3
    {"IncompleteRead(", Sign::HubUnreachable},
    {"httpx.Connect", Sign::HubUnreachable},
    {"httpx.ReadTimeout", Sign::HubUnreachable},
    {"modelscope", Sign::HubUnreachable, "HTTPError"},
    {"DatasetNotFoundError", Sign::HubUnreachable},
    {"on the Hub", Sign::HubUnreachable, "Error"},
    {"Hugging Face Hub", Sign::HubUnreachable, "Error"},
};

}  // namespace

std::span<const Rule> hub_rules() { return kRules; }

}  // namespace braid
